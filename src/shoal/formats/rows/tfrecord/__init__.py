"""TFRecord with its examples, and MXNet RecordIO."""
