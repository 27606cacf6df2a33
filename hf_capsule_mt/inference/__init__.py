"""Running trained models fast: searches for translations, and int8 on the CPU."""
