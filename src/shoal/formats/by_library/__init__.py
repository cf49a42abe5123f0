"""Parts of formats whose library opens files and decodes: shards as files, pieces of stored rows, rows of arrays."""
