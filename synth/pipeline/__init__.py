"""From settings to a folder of people: several at once, in shards, stopped and resumed."""
