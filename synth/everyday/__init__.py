"""The offline writer of everyday life: people's lives put together from authored scenes, without any model."""
