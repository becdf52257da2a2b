"""Live streams and bulk scoring on Spark: the live engine's rules and states inside a Spark job.

Needs `pip install "onlinecde[spark]"` and Java 17 or newer; pyspark is imported when first needed.
"""

from onlinecde.scale.spark.bulk import score
from onlinecde.scale.spark.columns import SparkError
from onlinecde.scale.spark.live import predict_stream, read_streams

__all__ = ["SparkError", "predict_stream", "read_streams", "score"]
