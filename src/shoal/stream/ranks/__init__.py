"""WHICH RANK IS THIS, AND WHAT IS ITS SHARE? Detected, compared, dealt."""
