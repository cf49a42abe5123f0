"""The bill of materials needs the tools of a release, which have an environment of their own."""

collect_ignore = ["sbom.py"]
