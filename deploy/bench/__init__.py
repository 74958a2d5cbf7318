"""What the stream costs against a bare loop over the same model."""
