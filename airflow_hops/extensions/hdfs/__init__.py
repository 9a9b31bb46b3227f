"""hdfs."""
