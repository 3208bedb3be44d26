"""A memory bank whose vectors live in ChromaDB. Nothing else imports chromadb."""
