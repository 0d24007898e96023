"""`PredictStream`: a reading in, a prediction out."""
