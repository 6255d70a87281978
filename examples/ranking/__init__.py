"""What do click, purchase and price need of one encoder? A ranking model on a shop's log, or on your own tables.

Heads on one encoder rank what a shop shows: will this be clicked, will what was clicked be bought, and for how much? The
log is generated, so that the true probabilities are known. Each head alone, the plain sum, `NormFloor()`, and ESMM, whose
head for purchases learns from all impressions, are compared by AUC, calibration and the error of the price.
"""
