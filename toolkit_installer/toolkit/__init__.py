"""The toolkit: what the payload holds, what is installed of it, and how it is configured. All of it is pure."""
