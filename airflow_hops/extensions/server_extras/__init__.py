"""What a busy or far model server needs: worker processes, batches, metrics and logs, models in stores."""
