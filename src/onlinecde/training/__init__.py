"""From a task to a trained, saved, measured model: `fit`, `evaluate`, `tune`."""
