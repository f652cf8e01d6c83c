"""How much does communication slow concurrent computation?"""
