"""`make demo` and the real Kafka that it and the tests run: started from Maven's jars, gone when we are."""
