"""A fitted model over new tables, without labels: scores of streams in memory, and of files of any size."""

from onlinecde.scoring.predicting import predict

__all__ = ["predict"]
