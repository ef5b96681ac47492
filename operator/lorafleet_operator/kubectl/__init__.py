"""`kubectl lora ...`: questions about adapters that the API server alone can answer."""
