"""The schematic drawings of the book: `canvas` has the vocabulary, the other modules a function for each drawing."""
