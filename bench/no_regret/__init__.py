"""Is whoever puts Tidegate in front ever worse off? Random scenarios, the default policy beside Triton's batcher."""
