"""`make demo`: the main job on real models, then why deferred batching pays."""
