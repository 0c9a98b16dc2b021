"""The carried sample of the images, and the loader."""
