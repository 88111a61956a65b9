"""Everything that uses SeqIO, TensorFlow or Beam. Importing this package imports none of them."""
