"""Network 3: EAR-TTS, text ids and past codes to the next frame of codes."""
