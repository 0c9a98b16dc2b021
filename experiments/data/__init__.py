"""A sample of the images, and the loader of complete copies."""
