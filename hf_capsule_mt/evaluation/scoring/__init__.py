"""Scores of translations: sacreBLEU's metrics, the BLEU of the papers, COMET."""
