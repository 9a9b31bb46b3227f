"""HDFS by its native protocol, and by WebHDFS."""
