"""One method a file or folder; `table` finds them."""
