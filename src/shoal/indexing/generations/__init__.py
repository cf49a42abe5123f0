"""Datasets that grow: earlier generations are recovered, later ones are indexed without reading known shards."""
