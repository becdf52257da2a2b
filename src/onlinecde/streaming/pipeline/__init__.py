"""A micro-batch on its way into the store: validate, order, merge, integrate, commit; `apply` takes these steps."""
