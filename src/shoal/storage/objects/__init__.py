"""Stores through other libraries: obstore (S3, Google Cloud Storage, Azure), fsspec and torch.distributed."""
