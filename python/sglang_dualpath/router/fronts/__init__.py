"""`--fronts N`: several processes that serve clients, around the one scheduling core of the process that started them."""
