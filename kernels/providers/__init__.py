"""The providers. Importing this package registers all; none needs its package to be there."""
