"""Network 3: EAR-TTS, which turns one text id per frame into 31 audio codes."""
