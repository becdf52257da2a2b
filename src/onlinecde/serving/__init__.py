"""The live server: HTTP and WebSocket API, and the monitor page."""
