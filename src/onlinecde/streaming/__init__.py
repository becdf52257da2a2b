"""Live streams: events in, one small durable state per stream, predictions at any time."""
