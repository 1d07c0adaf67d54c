"""What Outrider costs. `./dev bench` prints one table; compare rows of one run, not runs of different machines."""
