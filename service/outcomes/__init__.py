"""What real outcomes say of the predictions that came before them."""
