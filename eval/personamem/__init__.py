"""PersonaMem v1: multiple-choice questions on what a persona said over several sittings (PROTOCOLS.md, section 4)."""
