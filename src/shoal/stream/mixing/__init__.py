"""HOW DO DATASETS BECOME A MIXTURE? `shoal.mix`, its weights, and what is told of a mixture."""
