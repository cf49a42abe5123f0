"""HOW DO DATASETS BECOME A MIXTURE? `shoal.mix`, its weights, mixed datasets, and mixture files of three formats."""
