"""What runtimes that are other programs have in common: writing down what was done, asking, telling the past."""
