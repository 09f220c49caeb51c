"""Host-side audio in NumPy: files, resampling, log-mel. Everything here is float32 and independent of MLX."""
