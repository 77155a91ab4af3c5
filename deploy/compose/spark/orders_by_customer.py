"""Reads a whole topic of orders through Tidegate, as a batch, and prints who ordered for how much.

    spark-submit orders_by_customer.py BOOTSTRAP_SERVERS TOPIC

The job is any Spark job that reads from Kafka: only the address is Tidegate's. It runs on the Python of Spark's image.
The last line is `orders: N, cents: M`.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

TOP = 10


def main(bootstrap_servers: str, topic: str) -> None:
    spark = SparkSession.builder.appName("orders-by-customer").getOrCreate()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "order long, customer string, cents long").alias("order")
    by_customer = (
        records.select(order)
        .groupBy("order.customer")
        .agg(F.count("*").alias("orders"), F.sum("order.cents").alias("cents"))
    )
    # A customer a row, so few that the driver may hold them; the topic is read once.
    rows = sorted(by_customer.collect(), key=lambda row: -row["cents"])
    for row in rows[:TOP]:
        print(f"{row['customer']}: {row['orders']} orders, {row['cents']} cents")
    print(f"orders: {sum(row['orders'] for row in rows)}, cents: {sum(row['cents'] for row in rows)}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: orders_by_customer.py BOOTSTRAP_SERVERS TOPIC")
    main(sys.argv[1], sys.argv[2])
