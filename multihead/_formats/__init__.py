"""What a trainer is made from and written to: Keras models, `.keras` files, weights and SavedModels."""
