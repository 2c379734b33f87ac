"""SentEval: evaluate frozen sentence vectors by logistic regression on them (Conneau and Kiela, 2018)."""
