"""Views made from facts alone (R1.4): what each fact changes in them. Pure; ``infrastructure/stores`` keeps them."""
