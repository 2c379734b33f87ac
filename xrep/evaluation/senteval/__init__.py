"""SentEval: how well a logistic regression on frozen sentence vectors does (Conneau and Kiela, 2018)."""
