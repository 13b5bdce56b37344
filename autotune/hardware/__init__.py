"""What a model asks of the hardware, from its config.json alone: no vLLM, no GPU."""
