"""Uses SeqIO and its formats. Importing this package does not import SeqIO or TensorFlow."""
