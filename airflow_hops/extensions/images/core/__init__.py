"""Sources of images, for both environments."""
