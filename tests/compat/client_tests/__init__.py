"""The test suites that client libraries bring, against Ottla and Apache Kafka."""
