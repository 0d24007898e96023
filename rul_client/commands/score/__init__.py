"""`rul score`: a whole fleet from Parquet to Parquet, in parts that a killed run keeps."""
